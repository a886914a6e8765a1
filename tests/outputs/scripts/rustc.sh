mkdir -p ../broken/src
sed s/shop/broken/ Cargo.toml | sed '/lib/,$d' >../broken/Cargo.toml
cp broken/main.rs ../broken/src/
cd ../broken
cargo build --offline
