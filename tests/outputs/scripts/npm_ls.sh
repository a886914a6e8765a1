cd $HOME/js && npm ls --all | head -c 56000
