COLUMNS=110 dpkg -l | head -n 480
