apt-get install -y --reinstall ripgrep tree figlet cowsay lolcat moreutils 2>&1
