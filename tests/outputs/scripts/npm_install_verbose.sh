rm -rf node_modules package-lock.json
npm init -y >/dev/null
npm install --loglevel verbose jsonwebtoken@8.5.1 express@4
