"""dur.py SEED ROUNDS [durability] [shards]: pushes (repeated, reordered, skipped, reconnect), kill -9; model of rows, SGD lr 1, integer gradients: exact.
Worker with incarnation kept; invariants: after each kill, last_applied >= last acknowledged (last_acked sent as 0); rows == model of pushes 1..last_applied."""
from psc import *
seed=int(sys.argv[1]); rounds=int(sys.argv[2]); dura=sys.argv[3] if len(sys.argv)>3 else 'fsync'; nsh=int(sys.argv[4]) if len(sys.argv)>4 else 1
mode=int(sys.argv[5]) if len(sys.argv)>5 else 1
R=random.Random(seed); dd='BUILD%d-%s-%d-%d'%(seed,dura,nsh,mode); subprocess.run(['rm','-rf',dd]); os.makedirs(dd)
p=Psd('--data-dir',dd,'--durability',dura,'--checkpoint-every','1s','--log-max','2M',shards=nsh,log='BUILD%d.log'%seed)
KEYS=[[k for k in range(400) if shard_of(k,nsh)==s][:60] for s in range(nsh)]
inc=int(time.time()*1000); faults=0
class W:
    def __init__(s,sh): s.sh=sh; s.seq=0; s.acked=0; s.hist=[]; s.model={}; s.applied=0
    def conn(s,acked=0):
        t=time.time(); s.nconn=0; s.why=[]
        s.conn_(acked)
        if time.time()-t>2: say('dur slow conn',seed,'%.1f'%(time.time()-t),s.why[:3],len(s.why))
    def conn_(s,acked=0):
        e=time.time()+30
        while True:
            try:
                s.c=C(p.port,shard=s.sh,timeout=20); break
            except (OSError,Refused,Closed) as ex:
                s.why.append(repr(ex))
                if time.time()>e: raise
                time.sleep(.02)
        while True:
            s.j=s.c.join(job='dur',inc=inc,mode=mode,clock=s.applied if not s.hist else s.hist[0][0]-1,acked=acked)
            s.why.append(repr(s.j))
            if s.j.st!=-16 or time.time()>e: break
            time.sleep(.2)
        assert s.j.st==0,s.j
        t=s.c.table('dt',dim=2); assert t.st==0,t; s.tid=t.n(3); t=s.c.table('du',dim=3); s.tid2=t.n(3)
    def mk(s):
        s.seq+=1; ks=sorted(R.sample(KEYS[s.sh],R.randrange(0,9))); rows=[(R.randrange(-8,9),R.randrange(-8,9)) for _ in ks]
        s.hist.append((s.seq,ks,rows))
    def frame(s,h,rid):
        seq,ks,rows=h; kb=keys(ks); vb=b''.join(struct.pack('<2f',*r) for r in rows)
        body=kb+vb; fl=0
        if body and seq%7==0: body=zc(body); fl=1
        if seq%5==0: fl|=2
        return frame(PUSH,push_head(seq,seq-1,1,1,[section(s.tid,nk=len(ks),kb=len(kb),vb=len(vb))] if ks else []),body,rid,fl)
    def apply(s,upto):
        while s.hist and s.hist[0][0]<=upto:
            seq,ks,rows=s.hist.pop(0); assert seq==s.applied+1,(seq,s.applied); s.applied=seq
            for k,r in zip(ks,rows):
                m=s.model.setdefault(k,[0,0]); m[0]-=r[0]; m[1]-=r[1]
    def check(s,what):
        global faults
        r=s.c.pull(s.tid,KEYS[s.sh],s.applied)
        assert r.st==0,r
        bad=[(k,v,tuple(s.model.get(k,[0,0]))) for k,v in zip(KEYS[s.sh],r.rows) if v!=tuple(s.model.get(k,[0,0]))]
        if bad: faults+=1; say('DUR FAULT rows differ',what,'seed',seed,'shard',s.sh,'applied',s.applied,'acked',s.acked,bad[:4],len(bad)); s.model={k:list(v) for k,v in zip(KEYS[s.sh],r.rows)}
ws=[W(i) for i in range(nsh)]
for w in ws: w.conn()
kills=0; total=0; rep=0; t0=time.time(); lost_seen=0
for rnd in range(rounds):
    tr=time.time()
    killer=None
    if R.random()<.6:
        d=R.uniform(0.001,.12); q=p.p
        def k(): time.sleep(d); q.kill()
        killer=threading.Thread(target=k); killer.start()
    try:
      end=time.time()+.15
      while time.time()<end:
        for w in ws:
            n=R.randrange(1,12)
            for _ in range(n): w.mk()
            fr=[w.frame(h,1000000+h[0]) for h in w.hist]
            mess=R.random(); ex=[]
            if mess<.15: # skip: send a later one first
                h=(w.seq+5,[KEYS[w.sh][0]],[(7,7)]); ex=[w.frame(h,5)]; out=ex+fr
            elif mess<.3: out=fr+fr  # all twice
            elif mess<.4 and w.applied: # repeat of an ancient one, other content
                h=(R.randrange(1,w.applied+1),[KEYS[w.sh][1]],[(5,5)]); out=[w.frame(h,6)]+fr
            elif mess<.5: # seq 0
                out=[w.frame((0,[KEYS[w.sh][2]],[(3,3)]),7)]+fr
            elif mess<.6: # NaN push uses up its number: send as next, then hist shifts -> do it as a last one
                out=fr
            else: out=fr
            w.c.s.sendall(b''.join(out)); total+=len(out)
            seen={}
            for _ in out:
                r=w.c.recv()
                if r.rid==5:
                    if r.st!=-10010: faults+=1; say('DUR FAULT skip accepted',r)
                elif r.rid==6:
                    rep+=1
                    if r.st!=0 or not r.n(7): faults+=1; say('DUR FAULT repeat not repeated',r)
                elif r.rid==7:
                    if r.st!=-10010: faults+=1; say('DUR FAULT seq0',r)
                else:
                    sq=r.rid-1000000
                    if r.st!=0: faults+=1; say('DUR FAULT push refused',r,'seq',sq)
                    w.acked=max(w.acked,sq)
            w.apply(w.acked)
            if R.random()<.2: w.check('running')
            if R.random()<.05 and not killer: w.c.close(); w.conn(); assert w.j.n(3)>=w.acked; 
    except (Closed,OSError) as ex: 
        if time.time()-tr>2: say('dur slow exc',seed,rnd,'%.1f'%(time.time()-tr),repr(ex),len(out))
        if 'timed out' in repr(ex): say('dur TIMEOUT',seed,rnd,repr(ex),'outstanding',len(out))
    t1=time.time()
    if t1-tr>2: say('dur slow TRY block',seed,rnd,'%.1f'%(t1-tr))
    if killer:
        killer.join(); t2=time.time(); p.p.wait(); kills+=1
        if time.time()-t1>2: say('dur slow KILL',seed,rnd,'join %.1f wait %.1f'%(t2-t1,time.time()-t2))
        if R.random()<.3: p.start(wait=False); time.sleep(R.uniform(0,.05)); p.p.kill(); p.p.wait(); kills+=1  # kill while restoring
        p.start()
    if time.time()-tr>2: say('dur slow before conn',seed,rnd,'%.1f'%(time.time()-tr))
    for w in ws:
        w.c.close(); w.conn()
        la=w.j.n(3)
        if la<w.acked:
            if dura=='fsync': faults+=1; say('DUR FAULT acknowledged lost: acked',w.acked,'last_applied',la,'seed',seed,'round',rnd)
            else:
                lost_seen+=1; # rewind the model is not possible: start over by reading rows
                r=w.c.pull(w.tid,KEYS[w.sh],0); w.model={k:list(v) for k,v in zip(KEYS[w.sh],r.rows)}; w.hist=[]; w.applied=w.acked=w.seq=la
        if la>w.seq: faults+=1; say('DUR FAULT last_applied beyond sent',la,w.seq)
        w.apply(la); w.acked=max(w.acked,la); 
        w.check('after round %d'%rnd)
    if time.time()-tr>2: say('dur slow round',seed,rnd,'%.1f s'%(time.time()-tr),'applied',[w.applied for w in ws])
say('dur seed',seed,dura,'shards',nsh,'mode',mode,'rounds',rounds,'kills',kills,'pushes',total,'applied',[w.applied for w in ws],'repeats',rep,'faults',faults,'lost(rounds, not fsync)',lost_seen,'secs %.0f'%(time.time()-t0))
rc=p.stop(); v=subprocess.run([BIN+'/psctl','verify',dd],capture_output=True,text=True); say('dur stop',rc,'verify',v.returncode,v.stdout[-200:],v.stderr[-200:])
