export PATH=$HOME/js/node_modules/.bin:$PATH NODE_PATH=$HOME/js/node_modules
cd test && FORCE_COLOR=1 vitest run --globals --root .. --reporter=verbose test/
