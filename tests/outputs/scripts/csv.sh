echo package,version,size,section
dpkg-query -W -f '${Package},${Version},${Installed-Size},${Section}\n' | head -n 700
