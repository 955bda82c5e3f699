from psc import *
p=Psd(pre=('nice','-n','-12')); n=1000000
c=C(p.port); c.join(job='s',inc=1); t=c.table('d1',dim=1).n(3); r=c.call(PUSH,push_head(1,0,1,1,[section(t,nk=n,kb=n,vb=4*n)]),bytes([1])*n+bytes(4*n)); 
def good(j,s): return subprocess.run(['nice','-n','-12','python3','good2.py',str(p.port),str(s),j],capture_output=True,text=True,timeout=100).stdout.strip()
a=good('a',3); N=[0]; R=random.Random(9); end=time.time()+45; z=zc(bytes([1])*n); got=[0]
def att(role):
    while N[0]<1000 and time.time()<end:
        try:
            x=C(p.port,role=role,flags=2,timeout=20); 
            if role=='worker': x.join(job='c%d'%(threading.get_ident()%97),inc=int(time.time()*1e6))
            tt=x.table('d1',must=1).n(3)
            for _ in range(R.choice([1,1,3])): x.send(PULL,pull_head(0,0,[section(tt,nk=n,kb=n)]),z,1)
            k=R.choice([1,30,10000,600000,3000000]); h=0
            while h<k:
                d=x.s.recv(min(65536,k-h)); h+=len(d)
                if not d: break
            if R.random()<.5: x.s.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0))
            x.close(); N[0]+=1; got[0]+=h
        except Exception as e: got.append(repr(e)[:60])
th=[threading.Thread(target=att,args=(r,)) for r in ('reader','worker','reader','worker')]; [x.start() for x in th]; g=good('u',8); [x.join() for x in th]; time.sleep(1)
say('cut1000 ended',N[0],'errors',len(got)-1,got[1:3],'alone',a,'under',g,'rss %.0f'%p.rss(),'fds',p.nfd(),'held',p.stats()['totals']['net']['held_bytes'],p.stop())
