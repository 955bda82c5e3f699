"""flood2: readers that asked, from many addresses; and joined connections of one incarnation; fill all places."""
from psc import *
import resource; resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
p=Psd('--connections-max','1024')
def psctl(cmd='status'):
    t=time.time(); r=subprocess.run([BIN+'/psctl',cmd,'--server','127.0.0.1:%d'%p.port,'--timeout','10s'],capture_output=True,text=True); return 'psctl rc %d %.2fs %s'%(r.returncode,time.time()-t,r.stderr.strip()[:150]+(r.stdout[:1500] if cmd=='why' else ''))
def good(job,secs='2'):
    g2=subprocess.run(['/usr/bin/python3','good.py',str(p.port),secs,job],capture_output=True,text=True); return g2.stdout.strip() or g2.stderr.strip()[-200:]
c=C(p.port); c.join(job='setup',inc=1); c.table('t'); 
c2=C(p.port,src='127.9.9.9'); print(c2.join(job='livejob',inc=1,name='lw'))
def beat():
    while True:
        time.sleep(2)
        try: c2.call(BEAT)
        except Exception as e: say('beat lost',repr(e)); return
threading.Thread(target=beat,daemon=True).start()
def report(tag,cs):
    try: cc=C(p.port,src='127.9.9.9'); r='live address reconnects: '+repr(cc.join(job='livejob',inc=1,name='lw')); cc.close()
    except (Refused,Closed,OSError) as e: r='live address reconnect REFUSED '+repr(e)
    say('flood2',tag,'open',len(cs),psctl(),r); say('   new worker from 127.0.0.1:',good('n'+tag)); say('   why',psctl('why')[:400])
cs=[];err={}
for i in range(1500):
    try: x=C(p.port,src='127.3.%d.%d'%(i//200,1+i%200),role='reader'); x.table('t',must=1); cs.append(x)
    except Exception as e: err[repr(e)[:100]]=err.get(repr(e)[:100],0)+1
say(err); report('readers-asked',cs)
for x in cs: x.close()
time.sleep(.5); cs=[];err={}
for i in range(1500):
    try: x=C(p.port,src='127.0.0.5',role='worker'); r=x.join(job='many',inc=3); assert r.st==0,r; cs.append(x)
    except Exception as e: err[repr(e)[:100]]=err.get(repr(e)[:100],0)+1
say(err); report('joined-same-inc-one-address',cs)
for x in cs: x.close()
time.sleep(.5); cs=[];err={}
for i in range(300):
    try: x=C(p.port,src='127.0.0.5',role='worker'); r=x.join(job='many%d'%i,inc=3,n=1); cs.append(x); err[r.st]=err.get(r.st,0)+1
    except Exception as e: err[repr(e)[:100]]=err.get(repr(e)[:100],0)+1
say('64 jobs by one address',err); report('64jobs',cs)
for x in cs: x.close()
# one connection that JOINs many jobs, n_workers=1024 each (expected for join-timeout)
time.sleep(11); x=C(p.port,src='127.0.0.6'); err={}
for i in range(100):
    r=x.join(job='solo%d'%i,n=2,inc=1); err[r.st]=err.get(r.st,0)+1
say('one connection joins 100 jobs of 2 workers',err); x.close(); t0=time.time()
while time.time()-t0<75:
    r=C(p.port).join(job='fresh',inc=5)
    if r.st==0: break
    time.sleep(1)
say('a fresh job gets in after %.0f s'%(time.time()-t0),r)
say(p.stop())
