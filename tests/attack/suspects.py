"""suspects.py: lies in BEAT. Cluster of 2 nodes x 1 shard, lease 2 s."""
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
# A: liar names a healthy worker
for label,agreed_first,liar_relays,told in [('A1 suspect to both, then agreed',0,1,'both'),('A2 agreed at once to both',1,1,'both'),('A3 liar has not relays',0,0,'both'),('A4 agreed at once, one shard only',1,1,'one'),('A5 suspect to one shard only, honest relays',0,1,'one'),('A6 suspect one shard only, victim+others do not relay; liar silent about it',0,1,'one-norelay')]:
    job='s'+label[:2]; hr=0 if 'norelay' in told else 1
    w0=W(job,0,3,10,relays=hr).beater(bool(hr)); w1=W(job,1,3,11,relays=hr).beater(bool(hr)); l=W(job,2,3,12,relays=liar_relays,honest=False)
    ex=[]
    ex.append(l.beat1(0,[(1,11,agreed_first)])); 
    if told=='both': ex.append(l.beat1(1,[(1,11,agreed_first)]))
    time.sleep(.4)
    p1=[c.call(PUSH,push_head(1,0,1,1)).st for c in w1.cs]
    say(label,'victim push statuses per shard',p1,'states',states(job))
    if not agreed_first:
        if told=='both': l.beat1(0,[(1,11,1)]); l.beat1(1,[(1,11,1)])
    for x in range(4): l.beat1(0); l.beat1(1); time.sleep(.5)
    say('   later states',states(job),'w0 log',w0.log[:2],'victim log',w1.log[:2])
    # does job go on for w0 and liar?
    w0p=[c.call(PUSH,push_head(1,0,1,1)).st for c in w0.cs]; lp=[c.call(PUSH,push_head(1,0,1,1)).st for c in l.cs]
    ids=[(c,c.send(PULL,pull_head(1,6000,[section(w0.tid)]))) for c in w0.cs]
    t=time.time(); res=[]
    lb=True
    def keep():
        while lb:
            try: l.beat1(0); l.beat1(1)
            except Exception: return
            time.sleep(.3)
    th=threading.Thread(target=keep); th.start()
    with w0.lock:
        for c,i in ids:
            try: r=c.wait(i); res.append((r.st,r.n(3),r.text[:120],'%.1fs'%(time.time()-t)))
            except Exception as e: res.append(repr(e))
    lb=False; th.join()
    say('   w0 push',w0p,'liar push',lp,'w0 pulls of clock 1',res,'states',states(job))
    if told!='both': say('   why',subprocess.run([BIN+'/psctl','why','--server','127.0.0.1:%d'%pa],capture_output=True,text=True).stdout[:600])
    # victim returns
    w1.stop=True; v=W(job,1,3,20,relays=hr,name='w1'); say('   victim joins anew',v.st)
    w0.stop=True
    for w in (w0,w1,l,v):
        for c in w.cs: c.close()
# B: odd content
job='sB'; w0=W(job,0,2,10).beater(); l=W(job,1,2,12)
for d,s in [('rank out of range',[(5,10,0)]),('rank 2^32-1',[(2**32-1,10,1)]),('own',[(1,12,0)]),('own agreed',[(1,12,1)]),('wrong inc low',[(0,9,1)]),('wrong inc high',[(0,11,1)]),('inc 2^64-1',[(0,M,1)]),('17',[(7,i,0) for i in range(17)]),('16',[(7,i,0) for i in range(16)]),('dup',[(0,9,1)]*8)]:
    try: r=[l.beat1(i,s) for i in (0,1)]
    except (Closed,OSError) as e: r=repr(e)
    say('B',d,[(x[0].st,x[0].text[:60],x[1]) for x in r] if isinstance(r,list) else r,states(job))
# C: another job's worker names victims in this job: suspects only by job, so rank 0 of own job
say('alive',A.alive(),B.alive()); w0.stop=True
# D: incarnations: hijack: other name joins greater incarnation while live
w=W('sD',0,1,100,name='honest').beater(False)
h=C(pa,mapid=mapid); say('D hijack other name inc+1',h.join(job='sD',rank=0,inc=101,name='evil',mode=3)); say('D hijack same name',h.join(job='sD',rank=0,inc=102,name='honest',mode=3)); time.sleep(.7); say('D old',w.log[:2]); w.stop=True
h=C(pa,mapid=mapid); say('D 2^63-1 joins new job',h.join(job='sE',inc=2**63-1,mode=1)); h.close(); t=time.time()
while time.time()-t<20:
    h=C(pa,mapid=mapid); r=h.join(job='sE',inc=5,mode=1,name='other'); 
    if r.st==0: break
    h.close(); time.sleep(.1)
say('D after 2^63-1 another number joins after %.1f s'%(time.time()-t),r)
say('stop',A.stop(),B.stop())
