"""bigwal.py DURA(no|none|async|fsync) NKEYS plain|zstd: one big push of worker A; 3 live workers: one only pushes, one only pulls, one only beats; one new-connection reader. Worst of each in ms. Twice: new rows, then the same rows."""
from psc import *
import shutil
dura,n,how=sys.argv[1],int(sys.argv[2]),sys.argv[3]; dd='d/bw'; shutil.rmtree(dd,ignore_errors=True)
p=Psd(*(['--data-dir',dd,'--durability',dura] if dura!='no' else []),pre=('nice','-n','-12'))
a=C(p.port,timeout=300); a.join(job='A',inc=1); t=a.table('w',dim=1).n(3)
body=bytes([1])*n+bytes(4*n); z=zc(body) if how=='zstd' else body; s=section(t,nk=n,kb=n,vb=4*n)
OP=sys.argv[4]
def JN(o):
    time.sleep(.15); c=C(p.port,timeout=100); x=time.time(); r=c.join(job='N',inc=int(time.time()*1e6)); o.append((OP,r.st,round(time.time()-x,2)))
    if OP=='leave': x=time.time(); c.call(LEAVE); o.append(round(time.time()-x,2))
W=[]
for j in ('P','Q','B'):
    c=C(p.port,timeout=300); c.join(job=j,inc=1); c.tid=c.table('l').n(3); c.q=0; W.append(c)
for rnd in range(3):
    done=[0]; R={}; L={k:[] for k in('push','pull','beat')}
    def loop(k,c):
        while not done[0]:
            x=time.time()
            if k=='push': c.q+=1; r=c.push(c.tid,[1],[(1,1)],c.q,c.q-1)
            elif k=='pull': r=c.pull(c.tid,[1],0)
            else: r=c.call(BEAT)
            L[k].append((time.time()-x)*1000); time.sleep(.002)
    th=[threading.Thread(target=loop,args=x,daemon=True) for x in zip(('push','pull','beat'),W)]; [x.start() for x in th]; time.sleep(.3); base={k:round(max(v),1) for k,v in L.items()}; [v.clear() for v in L.values()]
    f=frame(PUSH,push_head(rnd+1,rnd,1,1,[s]),z,50+rnd,1 if how=='zstd' else 0); x=time.time(); a.s.sendall(f); jj=[]; jt=threading.Thread(target=JN,args=(jj,)); jt.start(); r=a.recv(); el=time.time()-x; done[0]=1; [q.join() for q in th]; jt.join()
    say('bigwal',dura,how,'keys',n,'frame',len(f),'round',rnd,'push st',r.st,'%.2f s'%el,'others before (max ms)',base,'joiner',jj,'during n/p50/max',{k:(len(v),round(pct(v,.5),1),round(max(v))) for k,v in L.items() if v})
p.stop(60)
