python -m pip inspect 2>/dev/null | python -c 'import json,sys; d=json.load(sys.stdin); [i["metadata"].pop("description", 0) for i in d["installed"]]; print(json.dumps(d)[:10**6])' | head -c 59000000
