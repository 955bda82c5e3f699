"""clock.py: clocks over 2^53 through a refused push's tick; restart; psctl; drop/set with live workers."""
from psc import *
import shutil
dd='BUILD'; shutil.rmtree(dd,ignore_errors=True); os.makedirs(dd)
ASAN='BUILD'
p=Psd('--data-dir',dd,'--durability','fsync','--lease','2s',bin=ASAN,log='BUILD')
for mode in (1,2,3):
    for ck in (2**53+2**16,2**53+2**16+1,2**60,2**63-1,2**63,2**64-2,2**64-1):
        job='k%d_%d'%(mode,ck); c=C(p.port,timeout=5); j=c.join(job=job,inc=1,mode=mode,bound=1 if mode==2 else 0); tid=c.table('kt%d'%mode).n(3)
        try:
            r=c.push(tid,[1],[(1,1)],1,ck); b=c.call(BEAT); r2=c.call(PULL,pull_head(ck,300,[section(tid)])); r0=c.call(PULL,pull_head(0,300,[section(tid)]))
            say('clock mode',mode,'push clock 2^53+%d'%(ck-2**53),'st',r.st,r.text[:60],'-> min_clock in reply',r.n(4),'beat',b.n(3),'pull there',r2.st,'pull 0',r0.st,r0.n(3))
            rj=C(p.port).join(job=job,inc=1,mode=mode,bound=1 if mode==2 else 0,clock=min(b.n(3),2**64-1)); say('   rejoin with own clock',rj.st,rj.text,rj.n(4))
        except (Closed,OSError) as e: say('clock mode',mode,ck,'EXC',repr(e),'alive',p.alive())
        c.close()
# two workers, lock step: one jumps its clock by a refused push, does the other go on?
a=C(p.port,timeout=8); b=C(p.port,timeout=8); a.join(job='two',rank=0,n=2,inc=1,mode=3,name='a'); b.join(job='two',rank=1,n=2,inc=1,mode=3,name='b'); tid=a.table('two').n(3)
say('two: b refused jump',b.push(tid,[1],[(5,5)],1,2**60)); 
say('two: a push 0',a.push(tid,[1],[(1,1)],1,0)); say('two: a pull 1',a.pull(tid,[1],1,2000))
say('two: a push 1..3',[a.push(tid,[1],[(1,1)],s,s-1).st for s in (2,3,4)],a.pull(tid,[1],4,2000))
op=C(p.port,role='operator',shard=0xffffffff,timeout=20)
say('why',op.admin('why').body[:200]); r=op.admin('workers'); say('workers',[ (j['job'] if 'job' in j else j.get('name'),j.get('min_clock')) for j in json.loads(r.body)['jobs']][:30])
say('checkpoint',op.admin('checkpoint').st); rc=p.stop(); say('stop',rc)
try: p.start(); say('restart ok')
except Exception as e: say('RESTART FAIL',repr(e))
p.kill(); 
try: p.start(); say('restart after kill ok')
except Exception as e: say('RESTART FAIL',repr(e))
v=subprocess.run([BIN+'/psctl','verify',dd],capture_output=True,text=True); say('verify',v.returncode,v.stdout[-100:])
v=subprocess.run([BIN+'/psctl','checkpoints',dd],capture_output=True,text=True); say('checkpoints',v.returncode,v.stdout[:600])
# drop
def psctl(*a): r=subprocess.run([BIN+'/psctl',*a,'--server','127.0.0.1:%d'%p.port],capture_output=True,text=True); return r.returncode,(r.stdout+r.stderr).strip()[:200]
time.sleep(2.5)
w=C(p.port); w.join(job='dj',inc=1); t=w.table('dj/a').n(3); w.push(t,[1],[(1,2)],1); r=C(p.port,role='reader'); r.table('dj/a',must=1)
other=C(p.port); other.join(job='oth',inc=1)
say('drop live',psctl('drop','dj','--yes'),'set live',psctl('set','dj','lr=0.5'))
w.call(LEAVE)
say('set after leave',psctl('set','dj','lr=nan'),psctl('set','dj','lr=-1'),psctl('set','dj','lr=1e39'),psctl('set','dj','lr=0.5'),psctl('set','dj','lr=0.5,lr=0.25'),psctl('set','dj',','.join(['lr=0.5']*60)))
say('drop dry',psctl('drop','dj'),'drop',psctl('drop','dj','--yes'),'again',psctl('drop','dj','--yes'))
say('reader pull of dropped',r.pull(t,[1])); o=other.push(t,[1],[(1,1)],1); say('other job pushes dropped id',o)
nt=other.table('dj/a'); say('made again',nt.n(3),'old id',t,'row',other.pull(nt.n(3),[1]).rows); p.kill(); p.start(); c=C(p.port); say('after kill: table',c.table('dj/a',must=1).st,'reader of old spec',C(p.port,role='reader').table('dj/a',must=1))
# drop race: joining/pushing while drops go on
stop=False; errs={}
def racer(i):
    k=0
    while not stop:
        k+=1
        try:
            c=C(p.port); j=c.join(job='race',rank=0,n=1,inc=int(time.time()*1e6)+i,name='r'); t=c.table('race/t%d'%(k%5))
            x=c.push(t.n(3),[k],[(1,1)],1) if t.st==0 and j.st==0 else t; y=c.pull(t.n(3),[k]); errs[(j.st,t.st,x.st,y.st)]=errs.get((j.st,t.st,x.st,y.st),0)+1; c.call(LEAVE); c.close()
        except Exception as e: errs[repr(e)[:60]]=errs.get(repr(e)[:60],0)+1
th=[threading.Thread(target=racer,args=(i,)) for i in range(3)]; [x.start() for x in th]
d={}
for i in range(300):
    try:
        x=op2.admin('drop','race')
    except NameError: op2=C(p.port,role='operator',shard=0xffffffff); x=op2.admin('drop','race')
    d[(x.st,x.text[:40])]=d.get((x.st,x.text[:40]),0)+1; time.sleep(.01)
stop=True; [x.join() for x in th]; say('drop race',d,errs); say('alive',p.alive(),p.stop()); say('asan',open(p.log,errors='replace').read().count('AddressSan'))
v=subprocess.run([BIN+'/psctl','verify',dd],capture_output=True,text=True); say('verify',v.returncode,v.stdout[-100:]); 
try: p.start(); say('restart ok',p.stop())
except Exception as e: say('RESTART FAIL',repr(e))
