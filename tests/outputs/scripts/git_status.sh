cd $HOME/history
for n in $(seq 140); do touch notes-$n.org; done
for f in *.el; do echo ';; x' >>$f; done
git mv README.org READ.org
git add gptel.el
git status
git checkout -q -f HEAD
rm notes-*
git reset -q --hard
