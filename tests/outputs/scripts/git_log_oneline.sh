cd $HOME/history
git log --oneline --no-color -n 700
