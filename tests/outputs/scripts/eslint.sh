export PATH=$HOME/js/node_modules/.bin:$PATH NODE_PATH=$HOME/js/node_modules
eslint --no-color -c eslint.config.mjs src test
