export PATH=$HOME/js/node_modules/.bin:$PATH NODE_PATH=$HOME/js/node_modules
vitest run --globals test/
