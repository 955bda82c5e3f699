"""mut.py SEED N: directed mutations of data dirs (snapshots of running psd, killed, clean); shards swapped, marks rolled back, removed, MANIFEST..."""
from lib2 import *
import psc
seed=int(sys.argv[1]); N=int(sys.argv[2]); R=random.Random(seed); b='d/mut-%d'%seed; shutil.rmtree(b,ignore_errors=True); os.makedirs(b+'/s')
p=Psd('--data-dir',b+'/s','--durability','fsync','--keep','2','--checkpoint-deltas','2',shards=NS,log=b+'/log')
m=Model(R,p); m.conn(); op=C(p.port,role='operator',shard=0xffffffff)
snaps=[]
def snap(name): shutil.copytree(b+'/s',b+'/'+name); snaps.append((name,list(m.acked)))
m.push(20); snap('run0'); m.push(20); r=op.admin('checkpoint'); m.push(7); snap('run1')
# copies while pushes go on (copy while running)
for k in range(4):
    stop=False
    def bg():
        while not stop: m.push(1)
    th=threading.Thread(target=bg); a=list(m.acked); th.start(); time.sleep(.05)
    if k%2: th2=threading.Thread(target=lambda:C(p.port,role='operator',shard=0xffffffff).admin('checkpoint')); th2.start(); time.sleep(R.random()*.05)
    shutil.copytree(b+'/s',b+'/live%d'%k); stop=True; th.join(); snaps.append(('live%d'%k,a))
m.push(15); r=op.admin('checkpoint'); m.push(9)
p.kill(); snap('killed')
p.start(); m.conn(); m.push(5); p.stop(); snap('clean')
say('mut',seed,'snaps',snaps)
cnt={}
def T(desc,dst,acked,want=None):
    lg=b+'/t.log'; q,err=trystart(dst,lg)
    log=open(lg,errors='replace').read(); warn=[l[25:200] for l in log.splitlines() if ' warn' in l or ' error' in l]
    if q is None:
        k='HANG' if 'HANG' in err else ('CRASH' if not err.startswith(('rc 1 ','rc 2 ')) else ('refused' if ('error' in log or 'psd:' in log) else 'REFUSED NO MSG'))
        info=[l for l in log.splitlines() if ' error' in l or l.startswith('psd')][-1:]
    else:
        try: bad,las=m.check(q.port,acked=acked)
        except Exception as e: bad,las=['EXC '+repr(e)],0
        if not q.alive(): k='DIED'
        elif not bad: k='whole'+('+warn' if warn else '')
        elif any('DIFFER' in x or 'EXC' in x or 'beyond' in x for x in bad): k='WRONG'+('+warn' if warn else ' SILENT')
        else: k='loss+warn' if warn else 'LOSS SILENT'
        info=[bad,warn[:2]]; 
        if q.alive(): q.kill()
    v=subprocess.run([BIN+'/psctl','verify',dst],capture_output=True,text=True,timeout=60)
    psc._all.clear()
    cnt[k]=cnt.get(k,0)+1
    if k not in ('whole','refused') or (k=='refused' and R.random()<.08) : say('mut',seed,k,'|',desc,'| verify rc',v.returncode,'|',info)
    return k
for n,a in snaps: 
    shutil.copytree(b+'/'+n,b+'/t'); T('control '+n,b+'/t',a); shutil.rmtree(b+'/t')
def files(d):
    o=[]
    for x,_,fs in os.walk(d):
        for f in fs: o.append(os.path.relpath(os.path.join(x,f),d))
    return sorted(o)
for i in range(N):
    name,a=R.choice([x for x in snaps if not x[0].startswith('live')] if R.random()<.8 else snaps); t=b+'/t'; shutil.rmtree(t,ignore_errors=True); shutil.copytree(b+'/'+name,t)
    fs=files(t); kind=R.choice(['rmcontrol','rmmark','rmboth','oldmark','oldcontrol','oldlog','oldall1','swapshard','swaplogdirs','swapmarks','swapcontrols','rmmanifest','manifestedit','rmlogdir','rmshardlog','rmseg','cutseg','cutmark','flipmark','cutcontrol','garbagecontrol','cpold','rmckpt','swappsc','oldckpts','dirforfile','symlink','zerolen','chmod','fifo','futuremark','rmlock','emptylockdir','renameseg','renameepoch','newepoch','extrafiles','cutseg+rmmark','cutseg+oldmark'])
    o=R.choice([x for x in snaps if x[0]!=name])[0]; os_=b+'/'+o; ofs=files(os_); sh='%03d'%R.randrange(NS); desc='%s on %s (other %s) shard %s'%(kind,name,o,sh)
    segs=[f for f in fs if f.endswith('.psl')]; man=[f for f in fs if f.endswith('MANIFEST')]; pcs=[f for f in fs if f.endswith('.psc')]
    P=lambda f:t+'/'+f
    def rm(f): os.remove(P(f)) if os.path.exists(P(f)) else None
    def cp(f): 
        if os.path.exists(os_+'/'+f): os.makedirs(os.path.dirname(P(f)),exist_ok=True); shutil.copy(os_+'/'+f,P(f))
    try:
        if kind=='rmcontrol': rm('wal-%s.control'%sh)
        elif kind=='rmmark': rm('wal-%s.control.mark'%sh)
        elif kind=='rmboth': rm('wal-%s.control'%sh); rm('wal-%s.control.mark'%sh)
        elif kind=='oldmark': cp('wal-%s.control.mark'%sh)
        elif kind=='oldcontrol': cp('wal-%s.control'%sh)
        elif kind=='oldlog': shutil.rmtree(P('log')); shutil.copytree(os_+'/log',P('log'))
        elif kind=='oldall1':
            for f in ofs:
                if sh in f and ('log/' in f or 'wal-' in f): cp(f)
        elif kind=='swapshard':
            for f in ('wal-%s.control','wal-%s.control.mark'): os.rename(P(f%'000'),P('x')); os.rename(P(f%'001'),P(f%'000')); os.rename(P('x'),P(f%'001'))
            for e in os.listdir(P('log')): d=P('log/'+e); os.rename(d+'/shard-000',d+'/x'); os.rename(d+'/shard-001',d+'/shard-000'); os.rename(d+'/x',d+'/shard-001')
        elif kind=='swaplogdirs':
            for e in os.listdir(P('log')): d=P('log/'+e); os.rename(d+'/shard-000',d+'/x'); os.rename(d+'/shard-001',d+'/shard-000'); os.rename(d+'/x',d+'/shard-001')
        elif kind=='swapmarks': f='wal-%s.control.mark'; os.rename(P(f%'000'),P('x')); os.rename(P(f%'001'),P(f%'000')); os.rename(P('x'),P(f%'001'))
        elif kind=='swapcontrols': f='wal-%s.control'; os.rename(P(f%'000'),P('x')); os.rename(P(f%'001'),P(f%'000')); os.rename(P('x'),P(f%'001'))
        elif kind=='rmmanifest': f=R.choice(man); rm(f); desc+=f
        elif kind=='manifestedit':
            f=R.choice(man); x=bytearray(open(P(f),'rb').read()); k=R.randrange(len(x)); x[k]=R.choice(b'0123456789abcdef{}",: '); open(P(f),'wb').write(x); desc+=f+' @%d'%k
        elif kind=='rmlogdir': shutil.rmtree(P('log'))
        elif kind=='rmshardlog':
            for e in os.listdir(P('log')): shutil.rmtree(P('log/'+e+'/shard-'+sh))
        elif kind=='rmseg': f=R.choice(segs); rm(f); desc+=f
        elif kind.startswith('cutseg'):
            f=R.choice(segs); n=os.path.getsize(P(f)); k=max(0,n-R.choice([1,4,30,100,500,R.randrange(n)])); os.truncate(P(f),k); desc+=f+' to %d of %d'%(k,n)
            if 'rmmark' in kind: rm('wal-%s.control.mark'%f.split('shard-')[1][:3])
            if 'oldmark' in kind: cp('wal-%s.control.mark'%f.split('shard-')[1][:3])
        elif kind=='cutmark': k=R.choice([0,1,8,16,23,24,31,32,33,100,4096]); os.truncate(P('wal-%s.control.mark'%sh),k); desc+=' to %d'%k
        elif kind=='flipmark':
            f=P('wal-%s.control.mark'%sh); x=bytearray(open(f,'rb').read()); k=R.choice([R.randrange(40),R.randrange(len(x)),R.randrange(4088,len(x))]) if len(x)>4090 else R.randrange(len(x)); x[k]^=1<<R.randrange(8); open(f,'wb').write(x); desc+=' @%d'%k
        elif kind=='futuremark':
            f=P('wal-%s.control.mark'%sh); x=bytearray(open(f,'rb').read()); k=struct.unpack_from('<Q',x,16)[0]; struct.pack_into('<Q',x,16,k+R.choice([1,5,2**40])); open(f,'wb').write(x)
        elif kind=='cutcontrol': f=P('wal-%s.control'%sh); os.truncate(f,R.randrange(os.path.getsize(f)))
        elif kind=='garbagecontrol':
            f=P('wal-%s.control'%sh); x=open(f,'rb').read(); y=x.replace(b'epoch 0',R.choice([b'epoch 1',b'epoch 99999999999999999999999',b'epoch -1'])) if R.random()<.5 else x+b'more\n'; c=crc(y.split(b'crc32c')[0]); y=y.split(b'crc32c')[0]+b'crc32c %08x\n'%c; open(f,'wb').write(y); desc+=repr(y)
        elif kind=='cpold': f=R.choice(ofs); cp(f); desc+=f
        elif kind=='rmckpt': d=os.path.dirname(R.choice(man)); shutil.rmtree(P(d)); desc+=d
        elif kind=='swappsc': f,g=R.choice(pcs),R.choice(pcs); x=open(P(f),'rb').read(); y=open(P(g),'rb').read(); open(P(f),'wb').write(y); open(P(g),'wb').write(x); desc+=f+' '+g
        elif kind=='oldckpts': shutil.rmtree(P('checkpoints'),ignore_errors=True); shutil.copytree(os_+'/checkpoints',P('checkpoints')) if os.path.exists(os_+'/checkpoints') else 0
        elif kind=='dirforfile': f=R.choice(fs); rm(f); os.makedirs(P(f)); desc+=f
        elif kind=='symlink': f=R.choice(fs); rm(f); os.symlink(R.choice(['/dev/null','/dev/zero','/nonexistent','.','/etc/passwd']),P(f)); desc+=f+'->'+os.readlink(P(f))
        elif kind=='zerolen': f=R.choice(fs); os.truncate(P(f),0); desc+=f
        elif kind=='fifo': f=R.choice([x for x in fs]); rm(f); os.mkfifo(P(f)); desc+=f
        elif kind=='rmlock': rm('LOCK')
        elif kind=='emptylockdir': rm('LOCK'); os.makedirs(P('LOCK'))
        elif kind=='renameseg': f=R.choice(segs); g=os.path.dirname(f)+'/%020d.psl'%R.choice([0,1,5,10**19,2**63]); os.rename(P(f),P(g)); desc+=f+'->'+g
        elif kind=='renameepoch': e=R.choice(os.listdir(P('log'))); g='%020d'%R.choice([1,7,2**64-1]); os.rename(P('log/'+e),P('log/'+g)); desc+=e+'->'+g
        elif kind=='newepoch': e=R.choice(os.listdir(P('log'))); g='%020d'%R.choice([1,7,2**64-1]); shutil.copytree(P('log/'+e),P('log/'+g)); desc+=e+'+>'+g
        elif kind=='extrafiles':
            for g in ['log/xx','log/00000000000000000000/shard-002/00000000000000000001.psl','log/00000000000000000000/shard-000/foo.psl','checkpoints/99999999999999999999999/MANIFEST','checkpoints/00000000000000000099/MANIFEST','checkpoints/-1/MANIFEST','wal-002.control']: os.makedirs(os.path.dirname(P(g)),exist_ok=True); open(P(g),'wb').write(os.urandom(100))
    except (OSError,IndexError) as e: continue
    try: T(desc,t,a)
    except subprocess.TimeoutExpired: say('mut',seed,'VERIFY HANGS',desc)
say('mut',seed,N,cnt)
