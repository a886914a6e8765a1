cd $HOME/history
head -c 45000 gptel-openai.el
