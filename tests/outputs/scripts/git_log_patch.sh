cd $HOME/history
git log -p --color=always -n 14
