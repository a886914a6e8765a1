node --test --test-reporter=spec node/
