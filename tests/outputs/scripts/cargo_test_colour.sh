cargo test --offline --color always -- --color always
