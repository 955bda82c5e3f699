"""killops.py SEED ROUNDS: fsync; kill -9 while checkpoint/drop/set is under way, while restoring, while relayouting (--shards other, possibly killed several times). Exact model."""
from lib2 import *
import psc
seed=int(sys.argv[1]); N=int(sys.argv[2]); R=random.Random(seed); b='d/ko-%d'%seed; shutil.rmtree(b,ignore_errors=True); os.makedirs(b)
nsh=2; KEYS=list(range(300)); faults=0; stat={}
def cnt(k): stat[k]=stat.get(k,0)+1
def F(*a):
    global faults; faults+=1; say('KO FAULT seed',seed,*a)
lg=b+'/log'
port,hport=freeport(),freeport()
def mk(n): 
    psc._all.clear(); return Psd('--data-dir',b+'/s','--durability','fsync','--keep','2','--checkpoint-deltas','3','--log-max','1M',shards=n,log=lg,port=port,hport=hport,wait=False)
p=mk(nsh); p.ready()
model={}   # key -> [x,y] certain
djstate={'lr':1.0,'exists':False}
def load(n):
    """n pushes per shard to job c until closed; returns list of maybe-applied"""
def conn(inc):
    cs=[]
    for i in range(nsh):
        c=C(port,shard=i,timeout=20); j=c.join(job='c',inc=inc,mode=1); assert j.st==0,j
        t=c.table('c/t'); assert t.st==0,t; c.tid=t.n(3); c.la=j.n(3); cs.append(c)
    return cs
inc=1000; seqs=[0]*nsh; pend=[None]*nsh
def settle(cs):
    """after reconnect with same inc: apply pend if la says so"""
    for i,c in enumerate(cs):
        if c.la<seqs[i]: F('acked lost shard',i,'la',c.la,'acked',seqs[i])
        if pend[i] and c.la==seqs[i]+1:
            for k,r in zip(*pend[i]): v=model.setdefault(k,[0.,0.]); v[0]-=r[0]; v[1]-=r[1]
            seqs[i]+=1
        elif c.la>seqs[i]+1: F('la too far',c.la,seqs[i])
        pend[i]=None
def verify(cs,what,amb=None):
    for i,c in enumerate(cs):
        ks=[k for k in KEYS if shard_of(k,nsh)==i]; r=c.pull(c.tid,ks,0); assert r.st==0,r
        for k,v in zip(ks,r.rows):
            w=tuple(model.get(k,(0.,0.)))
            if tuple(v)!=w:
                F(what,'shard',i,'of',nsh,'key',k,'is',v,'model',w); model[k]=list(v)
cs=conn(inc); nk=0; nr=0
for rnd in range(N):
    # dj tables
    dj=[]
    try:
        for i in range(nsh):
            c=C(port,shard=i,timeout=20); j=c.join(job='dj',inc=int(time.time()*1e6)); assert j.st==0,j
            for nm in ('dj/a','dj/b'):
                t=c.table(nm,lr=djstate['lr']) 
                if t.st==-10007: t=c.table(nm,must=1)
                assert t.st==0,t
                r=c.push(t.n(3),[k for k in range(20) if shard_of(k,nsh)==i],[(1,1)]*len([k for k in range(20) if shard_of(k,nsh)==i]),1 if nm=='dj/a' else 2,0)
            assert c.call(LEAVE).st==0; c.close()
        have={'a','b'}
    except Exception as e: F('dj setup',repr(e)); 
    op=R.choice(['checkpoint','checkpoint','drop','set','none','term']); newlr=R.choice([.5,.25,.125,2.,3.]); ans=[]
    def doop():
        try:
            o=C(port,role='operator',shard=0xffffffff,timeout=20)
            if op=='checkpoint': ans.append(o.admin('checkpoint'))
            elif op=='drop': ans.append(o.admin('drop','dj'))
            elif op=='set': ans.append(o.admin('set','dj lr=%g'%newlr))
        except Exception as e: ans.append(None)
    d=R.choice([R.uniform(0,.01),R.uniform(0,.06),R.uniform(.03,.25)]); q=p.p; delay=R.uniform(0,.05)
    def killer(): time.sleep(delay+d); q.kill() if op!='term' else (q.terminate(),time.sleep(R.uniform(0,.05)),q.kill())
    th=threading.Thread(target=killer); th.start(); th2=threading.Thread(target=lambda:(time.sleep(delay),doop())); th2.start()
    try:
        while True:
            for i,c in enumerate(cs):
                ks=sorted(R.sample([k for k in KEYS if shard_of(k,nsh)==i],R.randrange(0,30))); rw=[(R.randrange(-9,10),R.randrange(-9,10)) for _ in ks]; pend[i]=(ks,rw)
                r=c.push(c.tid,ks,rw,seqs[i]+1,seqs[i])
                if r.st==-10020: raise Closed('stopping')
                if r.st: F('push',r); break
                for k,x in zip(ks,rw): v=model.setdefault(k,[0.,0.]); v[0]-=x[0]; v[1]-=x[1]
                seqs[i]+=1; pend[i]=None
    except (Closed,OSError) as e: pass
    th.join(); th2.join(); p.p.wait(); nk+=1
    a=ans[0] if ans else None; cnt(op+(' answered %s'%a.st if a else ' unanswered'))
    for c in cs: c.close()
    relay=R.random()<.3
    if relay:
        # first settle: start with same layout? no: relayout directly from the killed state
        old=nsh; nsh2=R.choice([1,2,3,5]); 
        if nsh2!=nsh:
            for _ in range(R.randrange(0,4)):
                p=mk(nsh2); time.sleep(R.choice([R.uniform(0,.03),R.uniform(0,.2)])); p.p.kill(); p.p.wait(); nk+=1
            p=mk(nsh2)
            try: p.ready()
            except RuntimeError as e: F('relayout',old,'->',nsh2,'does not start:',str(e)[-400:]); break
            nr+=1; amb=[x for x in pend]; oldn=nsh; nsh=nsh2; inc+=1; 
            # ambiguous pushes: each pend whole applied or not at all
            cs=conn(inc); cur={}
            for i,c in enumerate(cs):
                ks=[k for k in KEYS if shard_of(k,nsh)==i]; r=c.pull(c.tid,ks,0); assert r.st==0,r
                for k,v in zip(ks,r.rows): cur[k]=v
            for i in range(oldn):
                okk=[k for k in KEYS if shard_of(k,oldn)==i]
                without={k:tuple(model.get(k,(0.,0.))) for k in okk}; withp=dict(without)
                if amb[i]:
                    for k,x in zip(*amb[i]): withp[k]=(withp[k][0]-x[0],withp[k][1]-x[1])
                g={k:cur[k] for k in okk}
                if g==withp:
                    for k in okk: model[k]=list(withp[k])
                elif g!=without:
                    df=[(k,g[k],without[k],withp[k]) for k in okk if g[k]!=without[k]]; F('relayout',oldn,'->',nsh,'rows differ',len(df),df[:3]); 
                    for k in okk: model[k]=list(g[k])
            seqs=[0]*nsh; pend=[None]*nsh
            # continue: skip settle
            relay=2
    if relay!=2:
        for _ in range(R.choice([0,0,1,2])): p=mk(nsh); time.sleep(R.uniform(0,.06)); p.p.kill(); p.p.wait(); nk+=1
        p=mk(nsh)
        try: p.ready()
        except RuntimeError as e: F('does not start after',op,str(e)[-500:]); break
        cs=conn(inc); settle(cs)
    verify(cs,'round %d op %s'%(rnd,op))
    # dj
    for nm in ('dj/a','dj/b'):
        res=[]
        for i in range(nsh):
            c=C(port,shard=i,timeout=20); t=c.call(TABLE,fb(1,spec(nm))+fv(2,1)) if 0 else None
            c.join(job='djx%d'%(rnd%3),inc=int(time.time()*1e6)); t=c.table(nm,must=1); c.call(LEAVE); c.close()
            if t.st==0:
                sp=dec(t.h[4][0]); lr=struct.unpack('<f',dec(sp[9][0])[1][0])[0]; res.append(lr)
            elif t.st==-10003: res.append(None)
            else: F('table',nm,t)
        if op=='drop' and a and a.st==0 and any(x is not None for x in res): F('answered drop not done',nm,res)
        if op=='set' and a and a.st==0 and any(abs(x-newlr)>1e-6 for x in res if x is not None): F('answered set not done',nm,res,newlr)
        if op in('checkpoint','none','term') and any(x is None for x in res): F('table gone without a drop',nm,res)
        if len(set(res))>1: cnt('mixed '+op); 
        if op not in('set',) and any(x is not None and abs(x-djstate['lr'])>1e-6 for x in res) and not djstate.get('mixed'): F('lr changed without set',nm,res,djstate)
        djstate['last']=res
    xs=[x for x in djstate['last'] if x is not None]
    if op=='set': djstate['mixed']=True
    # clean up: drop dj so that next is fresh
    o=C(port,role='operator',shard=0xffffffff,timeout=20); e=time.time()+15
    while True:
        x=o.admin('drop','dj')
        if x.st!=-16 or time.time()>e: break
        time.sleep(.1)
    if x.st not in (0,-10003): F('cleanup drop',x)
    djstate={'lr':R.choice([1.,.5]),'exists':False}; o.close()
rc=p.stop(); v=subprocess.run([BIN+'/psctl','verify',b+'/s'],capture_output=True,text=True)
say('killops seed',seed,'rounds',rnd+1,'kills',nk,'relayouts',nr,stat,'FAULTS',faults,'stop',rc,'verify',v.returncode,v.stdout[-150:] if v.returncode else '')
