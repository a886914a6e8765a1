export PATH=$HOME/js/node_modules/.bin:$PATH NODE_PATH=$HOME/js/node_modules
cp ts/*.ts src/
printf 'require("./cart")
require("./lost")
require("./order.ts");' >src/index.js
webpack --mode production --stats verbose --no-color
vite build --logLevel info
true
