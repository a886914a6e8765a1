node --test --test-reporter=tap node/
