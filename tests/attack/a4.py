"""a4.py: agreed at one shard only: shards combine different pushes (lock step). Cluster of 2 nodes x 1 shard, lease 2 s."""
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

job='a4'; w0=W(job,0,3,10); w1=W(job,1,3,11); l=W(job,2,3,12)
key=[next(k for k in range(99) if shard_of(k,2)==i) for i in (0,1)]
say('a4 liar BEAT agreed at shard 0 only',l.beat1(0,[(1,11,1)])[0].st)
def step(w,g):
    w.seq+=1; o=[]
    for i,c in enumerate(w.cs):
        kb=keys([key[i]]); o.append(c.call(PUSH,push_head(w.seq,w.seq-1,1,1,[section(w.tid,nk=1,kb=len(kb),vb=8)]),kb+struct.pack('<2f',g,g)).st)
    return o
say('a4 pushes of clock 0 (gradients 3 honest, 30 victim, 3 liar), status at shard 0, 1:',step(w0,3.),step(w1,30.),step(l,3.))
say('a4 row of clock 1 at shard 0, 1 (mean of three: -12; of two: -3):',[ (r.st,r.rows,'min clock',r.n(3)) for r in (c.pull(w0.tid,[key[i]],1,3000) for i,c in enumerate(w0.cs))])
time.sleep(1)
for c in w1.cs: 
    try: r=c.call(BEAT); say('a4 victim beats',r.st)
    except Exception as e: say(repr(e))
say('a4 states',states(job),A.stop(),B.stop())
