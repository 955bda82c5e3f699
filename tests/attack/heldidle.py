from psc import *
p=Psd('--client-memory','256M',*sys.argv[1:],pre=('nice','-n','-12')); n=12000000; body=bytes([1])*n+bytes(4*n)
A=[];hb=lambda: p.stats()['totals']['net']['held_bytes']
for i in range(8):
    a=C(p.port,timeout=60); a.join(job='A',rank=i,n=8,inc=1,mode=1,name='w%d'%i); t=a.table('w',dim=1).n(3); A.append(a)
m=1000000; r=A[0].call(PUSH,push_head(1,0,1,1,[section(t,nk=m,kb=m,vb=4*m)]),bytes([1])*m+bytes(4*m)); o=[]
for k in range(6): time.sleep(.5); o.append(hb())
say('heldidle 5 MB push answered',r.st,'held_bytes each 0.5 s',o); A[0].call(BEAT); time.sleep(.6); say('after a beat',hb())
for i,a in enumerate(A):
    try: r=a.call(PUSH,push_head(2 if i==0 else 1,0,1,1,[section(t,nk=n,kb=n,vb=4*n)]),body); st=r.st
    except (Closed,OSError) as e: st=repr(e)
    time.sleep(.7); 
    for b in A[:i]:
        pass
    say('   worker',i,'60 MB push',st,'held MB',hb()>>20,'greedy',p.stats()['totals']['net']['greedy_peers'],'rss %.0f'%p.rss())
for i,a in enumerate(A):
    try: print(i,a.call(BEAT).st)
    except Exception as e: print(i,repr(e))
time.sleep(1); say('after beats held MB',hb()>>20,p.stop())
