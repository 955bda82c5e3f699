"""closeself.py [psd args]: A sends one 1.9 KB push of 12M rows and closes 0.15 s later (or sends a 2nd/3rd push; or shutdown). Worst request of a live worker."""
from psc import *
p=Psd(*sys.argv[1:],pre=('nice','-n','-12')); n=12000000; z=zc(bytes([1])*n+bytes(4*n))
live=C(p.port,timeout=300); live.join(job='L',inc=1); lt=live.table('l').n(3); lq=0
for how in ('new rows, stay','stay','close','reset','stay','close','two pushes stay','two pushes close','two workers','three workers'):
    A=[]
    for i in range(3 if 'three' in how else 2 if 'two workers' in how else 1):
        a=C(p.port,timeout=300); a.join(job='A%d'%i,inc=int(time.time()*1e6)); t=a.table('w',dim=1).n(3); A.append(a)
    s=section(t,nk=n,kb=n,vb=4*n); L=[]
    def mes(secs):
        global lq
        e=time.time()+secs
        while time.time()<e:
            lq+=1; x=time.time(); live.push(lt,[1],[(1,1)],lq,lq-1); L.append((time.time()-x)*1000); x=time.time(); live.pull(lt,[1],lq); L.append((time.time()-x)*1000); time.sleep(.002)
    for a in A:
        a.send(PUSH,push_head(1,0,1,1,[s]),z,1)
        if 'two pushes' in how: a.send(PUSH,push_head(2,1,1,1,[s]),z,1)
    mes(.15); m0=max(L); L.clear()
    if 'close' in how: A[0].close()
    if how=='reset': A[0].s.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0)); A[0].close()
    mes(3.5); say('closeself',how,'max before %.0f'%m0,'max after %.0f ms'%max(L),'p99 %.1f'%pct(L,.99)); [a.close() for a in A]
p.stop(60)
