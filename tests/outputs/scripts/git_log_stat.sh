cd $HOME/history
git log --stat --no-color -n 80
