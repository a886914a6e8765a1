cd $HOME/js/node_modules && ls -lR acorn ajv chai eslint/lib/rules vite/dist | head -c 58000
