cd $HOME/history
head -c 45000 README.org
