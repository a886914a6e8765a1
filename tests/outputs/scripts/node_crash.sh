node crash.js
