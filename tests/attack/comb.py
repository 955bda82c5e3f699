"""comb.py: a live async worker (pull, push, beat) while another job does: lock-step combine of 3 x 12M rows; death of a worker with held pushes; drop of 12M rows; new incarnation dropping held pushes; close."""
from psc import *
p=Psd('--lease','4s',*sys.argv[1:],pre=('nice','-n','-12'))
W=[]
for j in ('P','Q','B'):
    c=C(p.port,timeout=300); c.join(job=j,inc=1); c.tid=c.table('l').n(3); c.q=0; W.append(c)
L={k:[] for k in('push','pull','beat')}; done=[0]
def loop(k,c):
    while not done[0]:
        x=time.time()
        if k=='push': c.q+=1; r=c.push(c.tid,[1],[(1,1)],c.q,c.q-1)
        elif k=='pull': r=c.pull(c.tid,[1],0)
        else: r=c.call(BEAT)
        L[k].append((time.time()-x)*1000); time.sleep(.002)
th=[threading.Thread(target=loop,args=x,daemon=True) for x in zip(('push','pull','beat'),W)]; [x.start() for x in th]
def mark(what,*a):
    time.sleep(.4); say('comb',what,*a,{k:(len(v),round(pct(v,.5),1),round(max(v))) for k,v in L.items() if v}); [v.clear() for v in L.values()]
mark('idle'); n=12000000; body=bytes([1])*n+bytes(4*n); z=zc(body)
ws=[]
for r in range(3):
    c=C(p.port,timeout=300); assert c.join(job='big',rank=r,n=3,inc=1,mode=3,name='w%d'%r).st==0; c.tid=c.table('big/t',dim=1).n(3); ws.append(c)
mark('joined'); s=section(ws[0].tid,nk=n,kb=n,vb=4*n)
for rnd in range(2):
    x=time.time()
    for c in ws[:2]: r=c.call(PUSH,push_head(rnd+1,rnd,1,1,[s]),z,1); assert r.st==0,r
    mark('2 held pushes r%d'%rnd,'%.2f s'%(time.time()-x)); x=time.time()
    r=ws[2].call(PUSH,push_head(rnd+1,rnd,1,1,[s]),z,1); r2=ws[0].pull(ws[0].tid,[1],rnd+1,dim=1); mark('third: combine r%d'%rnd,r.st,r2.st,'%.2f s'%(time.time()-x))
# held pushes dropped by a new incarnation
r=ws[0].call(PUSH,push_head(3,2,1,1,[s]),z,1); r=ws[1].call(PUSH,push_head(3,2,1,1,[s]),z,1); mark('held again'); x=time.time(); r=ws[0].join(job='big',rank=0,n=3,inc=5,mode=3,name='w0'); mark('greater incarnation drops held',r.st,'%.2f'%(time.time()-x))
x=time.time(); ws[1].close(); ws[2].close(); time.sleep(5); mark('w1 (with held), w2 died'); 
x=time.time(); r=ws[0].call(BEAT); say(r); ws[0].call(LEAVE); time.sleep(1); mark('left')
o=C(p.port,role='operator',shard=0xffffffff,timeout=100); e=time.time()+10
while True:
    x=time.time(); r=o.admin('set','big lr=0.5')
    if r.st!=-16 or time.time()>e: break
    time.sleep(.3)
mark('set',r,'%.2f'%(time.time()-x)); x=time.time(); r=o.admin('drop','big'); mark('drop',r,'%.2f'%(time.time()-x))
a=C(p.port,timeout=100); a.join(job='ttl',inc=1); t=a.table('ttl/t',dim=1,extra=fv(23,2)).n(3); r=a.call(PUSH,push_head(1,0,1,1,[section(t,nk=n,kb=n,vb=4*n)]),z,1); mark('ttl made',r.st); 
for i in range(10): a.call(BEAT); time.sleep(1)
mark('ttl swept',p.stats()['totals']['rows'])
t=a.table('ttl/o',dim=1,extra=fv(26,1)+fv(27,100<<20)).n(3)
for i in range(2): 
    b2=vi(1+i*n)+bytes([1])*(n-len(vi(1+i*n))); 
    r=a.call(PUSH,push_head(2+i,0,1,1,[section(t,nk=n-len(vi(1+i*n))+1,kb=n,vb=4*(n-len(vi(1+i*n))+1))]),zc(b2+bytes(4*(n-len(vi(1+i*n))+1))),1); mark('evict oldest %d'%i,r)
done[0]=1; say(p.stop(60))
