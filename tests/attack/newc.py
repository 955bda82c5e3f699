"""newc.py PORT SECS: new connections one after the other: HELLO, JOIN, TABLE, reader pull latencies ms"""
from psc import *
port,secs=int(sys.argv[1]),float(sys.argv[2]); L={k:[] for k in('connect+hello','join','table','leave','rhello','rtable','rpull')}; end=time.time()+secs; i=0; errs=[]
def T(k,f):
    t=time.time(); r=f(); L[k].append((time.time()-t)*1000); return r
while time.time()<end:
    i+=1
    try:
        c=T('connect+hello',lambda:C(port,timeout=60)); r=T('join',lambda:c.join(job='newc',inc=int(time.time()*1e6))); assert r.st==0,r
        r=T('table',lambda:c.table('goodt',dim=8)); assert r.st==0,r; T('leave',lambda:c.call(LEAVE)); c.close()
        c=T('rhello',lambda:C(port,timeout=60,role='reader')); r=T('rtable',lambda:c.table('goodt',must=1)); r=T('rpull',lambda:c.pull(r.n(3),[1,2,3],dim=8)); assert r.st==0,r; c.close()
    except Exception as e: errs.append(repr(e)[:100])
    time.sleep(.01)
print(json.dumps({k:(len(v),round(pct(v,.5),1),round(pct(v,.99),1),round(max(v))) for k,v in L.items() if v}),errs[:3])
