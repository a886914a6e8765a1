cd $HOME/js/node_modules && find . -path ./typescript -prune -o -name '*.map' -print -o -name 'LICENSE*' -print | sort
