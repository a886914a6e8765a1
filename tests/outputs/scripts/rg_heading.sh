cd $HOME/history
rg --heading -n --sort path --color never 'gptel--[a-z]+-tool' | head -c 50000
