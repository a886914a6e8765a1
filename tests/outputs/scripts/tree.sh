cd $HOME/js/node_modules && tree -n eslint | head -c 40000
