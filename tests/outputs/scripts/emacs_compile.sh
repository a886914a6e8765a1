emacs --batch -Q -f batch-byte-compile orders.el $HOME/history/*.el
