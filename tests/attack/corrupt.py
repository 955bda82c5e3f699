"""corrupt.py SEED N [kill|clean]: flips/deletes/truncations of a copied data dir; psd must refuse or have all rows and push numbers."""
from psc import *
import shutil, psc
_all=psc._all
seed=int(sys.argv[1]); N=int(sys.argv[2]); how=sys.argv[3]
R=random.Random(seed); base='BUILD%d'%seed; shutil.rmtree(base,ignore_errors=True); os.makedirs(base+'/src')
NS=2; p=Psd('--data-dir',base+'/src','--durability','fsync','--keep','2','--checkpoint-deltas','2',shards=NS,log='BUILD%d.log'%seed)
KEYS=[[k for k in range(400) if shard_of(k,NS)==s][:80] for s in range(NS)]
model=[{} for _ in range(NS)]; inc=77; cs=[]
for s in range(NS):
    c=C(p.port,shard=s); assert c.join(job='c',inc=inc).st==0; c.tid=c.table('ct').n(3); c.seq=0; cs.append(c)
op=C(p.port,role='operator',shard=0xffffffff)
def pushes(n):
    for _ in range(n):
        for s in range(NS):
            c=cs[s]; c.seq+=1; ks=sorted(R.sample(KEYS[s],20)); rows=[(R.randrange(-9,9),R.randrange(-9,9)) for _ in ks]
            r=c.push(c.tid,ks,rows,c.seq,c.seq-1); assert r.st==0
            for k,w in zip(ks,rows): m=model[s].setdefault(k,[0.,0.]); m[0]-=w[0]; m[1]-=w[1]
for i in range(5): pushes(60); r=op.admin('checkpoint'); assert r.st==0,r
pushes(60)
if how=='kill': p.kill()
else: p.stop()
files=[]
for d,_,fs in os.walk(base+'/src'):
    for f in fs: files.append(os.path.relpath(os.path.join(d,f),base+'/src'))
say('corrupt',seed,how,'files',[(f,os.path.getsize(base+'/src/'+f)) for f in sorted(files)])
res={}; det={}
def check(dst,q):
    bad=[]
    for s in range(NS):
        c=C(q.port,shard=s); j=c.join(job='c',inc=inc,clock=0)
        la=j.n(3)
        if j.st!=0 or la!=cs[s].seq: bad.append('shard %d join st %d last_applied %d of %d'%(s,j.st,la,cs[s].seq))
        t=c.table('ct'); r=c.pull(t.n(3),KEYS[s],cs[s].seq)
        if r.st: bad.append('pull st %d'%r.st)
        else:
            n=sum(1 for k,v in zip(KEYS[s],r.rows) if tuple(v)!=tuple(model[s].get(k,(0.,0.))))
            if n: bad.append('shard %d: %d rows differ'%(s,n))
        c.close()
    return bad
# control
shutil.copytree(base+'/src',base+'/t0'); q=Psd('--data-dir',base+'/t0','--durability','fsync',shards=NS,log=base+'/t0.log'); say('control',check(None,q)); q.kill()
for i in range(N):
    dst=base+'/t'; shutil.rmtree(dst,ignore_errors=True); shutil.copytree(base+'/src',dst)
    kind=R.choice(['flip','flip','flip1','trunc','del','zero','swap','append','dup','deldir','emptyfile','deltail'])
    f=R.choice(files); path=dst+'/'+f; n=os.path.getsize(path); desc=kind+' '+f
    try:
        if kind in('flip','flip1'):
            if n==0: continue
            b=bytearray(open(path,'rb').read()); o=R.randrange(n) if R.random()<.7 else R.choice([0,n-1,R.randrange(min(n,100)),n-1-R.randrange(min(n,100))]); b[o]^=(1<<R.randrange(8)) if kind=='flip1' else R.randrange(1,256); open(path,'wb').write(b); desc+=' @%d'%o
        elif kind=='trunc': 
            k=R.randrange(n+1); os.truncate(path,k); desc+=' to %d of %d'%(k,n)
        elif kind=='deltail':
            k=max(0,n-R.randrange(1,200)); os.truncate(path,k); desc+=' to %d of %d'%(k,n)
        elif kind=='del': os.remove(path)
        elif kind=='emptyfile': os.truncate(path,0)
        elif kind=='zero':
            if n==0: continue
            o=R.randrange(n); k=min(n-o,R.choice([4,64,512,4096])); fd=open(path,'r+b'); fd.seek(o); fd.write(bytes(k)); fd.close(); desc+=' @%d+%d of %d'%(o,k,n)
        elif kind=='swap':
            g=R.choice(files); 
            if g==f: continue
            a=open(path,'rb').read(); b=open(dst+'/'+g,'rb').read()
            if a==b: continue
            open(path,'wb').write(b); open(dst+'/'+g,'wb').write(a); desc+=' with '+g
        elif kind=='append': open(path,'ab').write(os.urandom(R.choice([1,7,100,5000])))
        elif kind=='dup':
            g=R.choice(files); 
            if g==f: continue
            shutil.copy(path,dst+'/'+g); desc='copy '+f+' over '+g
        elif kind=='deldir':
            d=os.path.dirname(path); 
            if d==dst: continue
            shutil.rmtree(d); desc='rmdir '+os.path.dirname(f)
    except OSError as e: continue
    lg=base+'/t.log'; open(lg,'w').close()
    try:
        q=Psd('--data-dir',dst,'--durability','fsync',shards=NS,log=lg); up=True
    except RuntimeError as e: up=False; err=str(e)
    log=open(lg,errors='replace').read()
    if not up:
        q=_all[-1]; rc=q.p.poll()
        if rc is None: k='HANG/NOTREADY'; say('corrupt',seed,i,desc,k,log[-300:]); q.kill()
        elif rc not in (1,2): k='CRASH rc %s'%rc; say('corrupt',seed,i,desc,k,log[-400:])
        else: k='refused' if (' error' in log or 'psd:' in log) else 'refused, no message'
        if k=='refused, no message': say(desc,k,log)
    else:
        try: bad=check(dst,q)
        except Exception as e: bad=['exc '+repr(e)]
        log=open(lg,errors='replace').read(); warn=[l for l in log.splitlines() if ' warn' in l or ' error' in l]
        if not q.alive(): k='DIED'; say('corrupt',seed,i,desc,k,log[-400:])
        elif not bad: k='whole'+(' +warn' if warn else '')
        elif warn: k='LOSS with warning'; say('corrupt',seed,i,desc,k,bad,warn[:3])
        else: k='SILENT LOSS'; say('corrupt',seed,i,desc,k,bad,log[-500:])
        q.kill()
    v=subprocess.run([BIN+'/psctl','verify',dst],capture_output=True,text=True) if (i%4==0 and not up) else None
    if v and v.returncode not in (0,1): say('verify rc',v.returncode,desc,v.stderr[-200:])
    res[k]=res.get(k,0)+1; _all.remove(q)
    if i%100==99: say('corrupt',seed,i+1,res)
say('corrupt seed',seed,how,'N',N,res)
