rm -rf env
python -m venv env
env/bin/pip install --no-cache-dir --no-binary :all: -v pycairo==1.20.0
