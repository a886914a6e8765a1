rm -rf env
python -m venv env
env/bin/pip install --no-cache-dir 'sphinx==7.2.6' 'docutils==0.21.2' requests
