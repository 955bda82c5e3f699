"""suspects2.py: a worker that says relays=1 and never relays freezes the job when another falls silent at one shard / at both. 2 nodes, lease 2 s."""
from psc import *
pa,pb=freeport(),freeport(); cl='127.0.0.1:%d,127.0.0.1:%d'%(pa,pb)
A=Psd('--cluster',cl,'--node','0','--lease','2s',port=pa,wait=False); B=Psd('--cluster',cl,'--node','1','--lease','2s',port=pb,wait=False); A.ready(); B.ready()
c=C(pa,role='operator',shard=0xffffffff); mapid=c.hr.n(7); c.close()
def workers(port):
    c=C(port,role='operator',shard=0xffffffff); r=json.loads(c.admin('workers').body); c.close(); return r
def states(job):
    o=[]
    for p in (pa,pb):
        for j in workers(p).get('jobs',[]):
            if j.get('job',j.get('name'))==job: o.append([(w.get('rank'),w.get('state')) for w in j.get('workers',j.get('ranks',[]))])
    return o
class W:
    def __init__(s,job,rank,n,inc,mode=3,relays=1,name=None,honest=True,shards=(pa,pb)):
        s.job,s.rank,s.inc,s.honest=job,rank,inc,honest; s.cs=[C(p,mapid=mapid,timeout=15) for p in shards]; s.st=[]; s.log=[]; s.lock=threading.Lock(); s.stop=False
        for c in s.cs:
            r=c.join(job=job,rank=rank,n=n,inc=inc,mode=mode,bound=0,name=name or 'w%d'%rank,relays=relays); s.st.append(r.st); s.tid=c.table('st%s'%job).n(3)
        s.seq=0; s.sus={}  # (rank,inc)->set of shards that refused
    def beat1(s,i,sus=()):
        with s.lock: r=s.cs[i].call(BEAT,fv(1,0)+b''.join(fbz(2,fv(1,a)+fv(2,b)+fv(4,g)) for a,b,g in sus))
        return r,[(dec(x).get(1,[0])[0],dec(x).get(2,[0])[0]) for x in r.h.get(4,[])]
    def step(s,clock,timeout=4000,wait=True):
        s.seq+=1; o=[]
        with s.lock:
            for c in s.cs: o.append(c.call(PUSH,push_head(s.seq,clock,1,1,[section(s.tid)])).st)
            if wait:
                ids=[(c,c.send(PULL,pull_head(clock+1,timeout,[section(s.tid)]))) for c in s.cs]
                for c,i in ids: r=c.wait(i); o.append((r.st,r.n(3),r.text[:100]))
        return o
    def beater(s,relay=True):
        def f():
            while not s.stop:
                try:
                    for i in range(len(s.cs)):
                        sus=[(a,b,len(v)==len(s.cs)) for (a,b),v in s.sus.items()] if relay else []
                        r,o=s.beat1(i,sus)
                        if r.st: s.log.append((i,r.st,r.text))
                        if relay:
                            for a,b,_ in sus: s.sus[(a,b)].add(i)
                            for k in o: s.sus.setdefault(k,set()).add(i)
                except (Closed,OSError) as e: s.log.append(repr(e)); return
                time.sleep(.3)
        threading.Thread(target=f,daemon=True).start(); return s
say('workers json sample',json.dumps(workers(pa))[:300])

for label,silent_shards in [('silent at one shard of two',(0,)),('silent at both shards',(0,1))]:
    job='f%d'%len(silent_shards)
    w0=W(job,0,3,10,relays=0); w1=W(job,1,3,11,relays=0); l=W(job,2,3,12,relays=1)
    stop=False; lg=[]
    def b(w,shards):
        while not stop:
            for i in shards:
                try: r,o=w.beat1(i)
                except Exception as e: lg.append(repr(e)); return
                if r.st: lg.append((w.rank,i,r.st))
            time.sleep(.3)
    # beats on own connections so that parked pulls do not block
    for w in (w0,w1,l):
        w.bc=[C(p,mapid=mapid) for p in (pa,pb)]
        for c in w.bc: r=c.join(job=job,rank=w.rank,n=3,inc=w.inc,mode=3,name='w%d'%w.rank,relays=1 if w is l else 0); assert r.st==0,r
        w.main=w.cs; w.cs=w.bc
    for w,sh in ((w0,(0,1)),(l,(0,1)),(w1,tuple(i for i in (0,1) if i not in silent_shards))): 
        threading.Thread(target=b,args=(w,sh),daemon=True).start()
    for w in (w0,l): 
        for c in w.main: assert c.call(PUSH,push_head(1,0,1,1)).st==0
    ids=[c.send(PULL,pull_head(1,0,[section(w0.tid)])) for c in w0.main]
    t=time.time(); got=[None,None]
    while time.time()-t<45 and not all(got):
        for i,c in enumerate(w0.main):
            if got[i] is None and select.select([c.s],[],[],.1)[0]: r=c.recv(); got[i]=(r.st,r.n(3),'%.1f s'%(time.time()-t))
    say('suspects2',label,'w0 pulls answered:',got,'after %.0f s'%(time.time()-t),'states',states(job),'log',lg[:3])
    say('   why',subprocess.run([BIN+'/psctl','why','--server','127.0.0.1:%d'%pa],capture_output=True,text=True).stdout[:700])
    stop=True; time.sleep(.5)
    for w in (w0,w1,l):
        for c in w.main+w.bc: c.close()
say('stop',A.stop(),B.stop())
