rm -rf node_modules package-lock.json
npm init -y >/dev/null
npm install --loglevel http request@2.88.2 rimraf@3.0.2 glob@7.2.3 uuid@3.4.0 har-validator@5.1.5
