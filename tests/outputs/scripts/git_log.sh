cd $HOME/history
git log --no-color -n 120
