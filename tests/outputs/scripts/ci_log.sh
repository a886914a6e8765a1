rm -rf env; python -m venv env
log() { python ../prefix.py "$1" "$2"; }
{
  echo '##[group]Run actions/setup-python@v5'; python -VV; env | grep -E '^(HOME|LANG|PWD|USER)=' ; echo '##[endgroup]'
} 2>&1 | log 'test (3.11)' 'Set up Python'
{
  echo '##[group]Run pip install sphinx'; echo '##[endgroup]'; env/bin/pip install --no-cache-dir sphinx
} 2>&1 | log 'test (3.11)' 'Install'
{
  echo '##[group]Run python -m pytest'; echo '##[endgroup]'; python -m pytest -v -p no:cacheprovider; echo "##[error]Process completed with exit code $?."
} 2>&1 | log 'test (3.11)' 'Test'
{
  echo '##[group]Run ruff check'; echo '##[endgroup]'; ruff check --no-cache --isolated --output-format github shop; echo "##[error]Process completed with exit code $?."
} 2>&1 | log lint Ruff
