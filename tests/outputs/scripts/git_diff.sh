cd $HOME/history
git diff --no-color HEAD~45 HEAD -- '*.el' | head -c 59000
