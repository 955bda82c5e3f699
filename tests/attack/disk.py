"""disk.py: disk full on tmpfs (8M) for fsync and async; two psd on one data directory; SIGSTOP."""
from psc import *
m='BUILD'; os.makedirs(m,exist_ok=True)
for dura in ('fsync','async','none'):
    subprocess.run(['umount',m],capture_output=True); assert subprocess.run(['mount','-t','tmpfs','-o','size=12M','tmpfs',m]).returncode==0
    os.makedirs(m+'/dd'); p=Psd('--data-dir',m+'/dd','--durability',dura,'--log-max','200M',log='BUILD%s.log'%dura)
    c=C(p.port,timeout=4); c.join(job='f',inc=9); tid=c.table('ft',dim=256).n(3); model={}; acked=0; seq=0; sent={}
    RR=random.Random(3); t0=time.time(); stuck=False
    def hz():
        r=subprocess.run(['curl','-s','-m','3','-w',' %{http_code}','http://127.0.0.1:%d/healthz'%p.hport],capture_output=True,text=True); return r.stdout[:160]
    while time.time()-t0<20:
        seq+=1; ks=sorted(RR.sample(range(100),50)); rows=[tuple(float(RR.randrange(-9,9)) for _ in range(256)) for _ in ks]; sent[seq]=(ks,rows)
        try: r=c.push(tid,ks,rows,seq,seq-1)
        except (OSError,Closed) as e: stuck=True; say('disk',dura,'push',seq,'no answer',repr(e),'healthz',hz()); break
        if r.st: say('disk',dura,'push',seq,'st',r.st,r.text); break
        acked=seq
        if seq>3000: break
    say('disk',dura,'acked',acked,'seq',seq,'healthz',hz(),'rss %.0f'%p.rss(),subprocess.run([BIN+'/psctl','why','--server','127.0.0.1:%d'%p.port],capture_output=True,text=True).stdout[:300])
    chk=C(p.port,role='operator',shard=0xffffffff,timeout=20).admin('checkpoint'); say('   checkpoint on full disk',chk.st,chk.text[:150],chk.body[:100],hz())
    # make space
    if dura=='fsync':
        subprocess.run(['mount','-o','remount,size=200M',m]); t=time.time(); ok=None
        try:
            c.s.settimeout(15); r=c.recv(); ok=(r.st,r.n(3))
        except Exception as e: ok=repr(e)
        say('   after making space: reply to the stuck push',ok,'after %.1f s'%(time.time()-t),hz())
        if isinstance(ok,tuple) and ok[0]==0: acked=max(acked,ok[1])
    p.kill()
    if dura!='fsync': subprocess.run(['mount','-o','remount,size=200M',m])
    try:
        p.start(); c=C(p.port); j=c.join(job='f',inc=9); la=j.n(3); say('   restart: last_applied',la,'acked',acked,'LOST' if la<acked else 'ok')
        mod={k:[0.0]*256 for k in range(100)}
        for s in range(1,la+1):
            for k,rw in zip(*sent[s]): 
                m_=mod[k]
                for i in range(256): m_[i]-=rw[i]
        r=c.pull(c.table('ft',dim=256).n(3),list(range(100)),la,dim=256); say('   rows differ:',sum(1 for k in range(100) if tuple(mod[k])!=r.rows[k]))
    except Exception as e: say('   restart',repr(e)[:500])
    # two psd
    if p.alive():
        q=subprocess.run([BIN+'/psd','--listen','127.0.0.1:0','--http','off','--shards','1','--data-dir',m+'/dd'],capture_output=True,text=True,timeout=20); say('   second psd on it: rc',q.returncode,q.stderr[-200:].strip())
        q=subprocess.run([BIN+'/psd','--listen','127.0.0.1:0','--http','off','--shards','1','--data-dir',m+'/../small/dd/'],capture_output=True,text=True,timeout=20); say('   second psd via other path: rc',q.returncode,q.stderr[-200:].strip())
        say('   prune by psctl while running rc',subprocess.run([BIN+'/psctl','prune',m+'/dd','--yes'],capture_output=True,text=True).returncode)
        say('   stop',p.stop())
    subprocess.run(['umount',m],capture_output=True)
