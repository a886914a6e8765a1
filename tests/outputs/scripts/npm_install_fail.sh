rm -rf node_modules package-lock.json
npm init -y >/dev/null
npm install eslint@8 eslint-plugin-unicorn@60 --loglevel http
