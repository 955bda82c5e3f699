"""good.py PORT SECS JOB: a worker in a loop push+pull of 100 keys on dim 8, ~500 steps/s at most; prints JSON of latencies in ms."""
from psc import *
port,secs,job=int(sys.argv[1]),float(sys.argv[2]),sys.argv[3]
c=C(port,timeout=60); t0=time.time(); j=c.join(job=job,inc=int(time.time()*1000)); assert j.st==0,j
t=c.table('goodt',dim=8); assert t.st==0,t; tid=t.n(3); tj=(time.time()-t0)*1000
ks=list(range(1,101)); kb=keys(ks); vb=struct.pack('<800f',*[.001]*800)
L=[];P=[];seq=j.n(3);end=time.time()+secs;errs=0;tend=time.time()
while time.time()<end:
    seq+=1
    h=push_head(seq,seq-1,1,1,[section(tid,nk=100,kb=len(kb),vb=len(vb))]); a=time.time()
    r=c.call(PUSH,h,kb+vb); b=time.time(); P.append((b-a)*1000); errs+=r.st!=0
    r=c.call(PULL,pull_head(seq,0,[section(tid,nk=100,kb=len(kb))]),kb); L.append((time.time()-b)*1000); errs+=r.st!=0
    time.sleep(.002)
c.call(LEAVE)
print(json.dumps(dict(n=len(L),push_p50=round(pct(P,.5),2),push_p99=round(pct(P,.99),2),pull_p50=round(pct(L,.5),2),pull_p99=round(pct(L,.99),2),max=round(max(L+P),1),errs=errs,join_ms=round(tj,1))))
