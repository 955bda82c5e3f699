"""slowread.py: fsync; 24 workers push/join/table pipelined and read nothing (replies wait for the WAL, then for the reader); a good worker meanwhile; client-memory 256M."""
from psc import *
import shutil; shutil.rmtree('d/sr',ignore_errors=True)
p=Psd('--data-dir','d/sr','--durability','fsync','--client-memory','256M','--frame-timeout','5s',pre=('nice','-n','-12'))
def good(j,s): return subprocess.run(['nice','-n','-12','python3','good2.py',str(p.port),str(s),j],capture_output=True,text=True,timeout=100).stdout.strip()
say('slowread alone',good('a',4)); A=[]
big=C(p.port); big.join(job='b',inc=1); t=big.table('d8',dim=8).n(3)
for i in range(24):
    c=C(p.port); assert c.join(job='S',rank=i,n=24,inc=1,mode=1,name='s%d'%i).st==0; c.tid=c.table('d8',dim=8).n(3); c.k=0; c.s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,4096); c.s.setblocking(False); c.o=b''; A.append(c)
stop=False; n=[0]; closed=[0]
def att():
    os.nice(5) if False else None
    while not stop:
        for c in list(A):
            if not c.o:
                o=[]
                for _ in range(100):
                    c.k+=1; q=c.k%4
                    if q<2: c.seq=getattr(c,'seq',0)+1; o.append(frame(PUSH,push_head(c.seq,c.seq-1,1,1,[section(c.tid,nk=5,kb=5,vb=160)]),b'\1'*5+bytes(160),c.k))
                    elif q==2: o.append(frame(PULL,pull_head(0,0,[section(c.tid,nk=5000,kb=5000)]),b'\1'*5000,c.k))
                    else: o.append(frame(TABLE,fb(1,spec('d8',dim=8)),b'',c.k))
                c.o=memoryview(b''.join(o))
            try: k=c.s.send(c.o); c.o=c.o[k:]; n[0]+=k
            except BlockingIOError: pass
            except OSError: A.remove(c); closed[0]+=1
        time.sleep(.001)
th=threading.Thread(target=att); th.start(); mx=0
def w():
    global mx
    while not stop: mx=max(mx,p.rss()); time.sleep(.05)
th2=threading.Thread(target=w); th2.start()
g=good('u',8); x=time.time(); r=subprocess.run([BIN+'/psctl','why','--server','127.0.0.1:%d'%p.port],capture_output=True,text=True); s=p.stats(); say('slowread under',g,'sent MB',n[0]>>20,'closed',closed[0],'rss %.0f'%mx,'held',s['totals']['net']['held_bytes'],'greedy',s['totals']['net']['greedy_peers'],'slow',s['totals']['net']['slow_peers'],'psctl %.2f'%(time.time()-x),r.stdout[:200])
stop=True; th.join(); th2.join(); [c.close() for c in A]; time.sleep(1); say('after',good('z',3),'rss %.0f'%p.rss(),p.stop(60))
