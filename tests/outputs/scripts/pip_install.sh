rm -rf env
python -m venv env
env/bin/pip install --no-cache-dir --progress-bar on sphinx requests 'urllib3<2'
