"""park.py: parked pulls from many connections of one incarnation; bound 256 MiB a shard; others go on."""
from psc import *
p=Psd(); c0=C(p.port); c0.join(job='pk',rank=0,n=2,inc=1,mode=3,name='a'); tid=c0.table('t1',dim=1).n(3)
kb=b'\x01'*1000000; cs=[]; st={}
for i in range(40):
    print(i,'%.2f'%time.time(),'rss %.0f'%p.rss(),flush=True); c=C(p.port,timeout=20); assert c.join(job='pk',rank=0,n=2,inc=1,mode=3,name='a').st==0; cs.append(c)
    for k in range(18): c.send(PULL,pull_head(10,60000,[section(tid,nk=1000000,kb=len(kb))]),kb)
time.sleep(1)
for c in cs:
    while select.select([c.s],[],[],.02)[0]:
        try: r=c.recv(); st[(r.st,r.text[:60])]=st.get((r.st,r.text[:60]),0)+1
        except Exception as e: st[repr(e)[:50]]=st.get(repr(e)[:50],0)+1; break
s=p.stats(); say('park: statuses',st,'parked',s['totals']['net']['parked_pulls'],'rss %.0f'%p.rss(),'held',s['totals']['net']['held_bytes'])
g=subprocess.run(['/usr/bin/python3','good.py',str(p.port),'3','gp'],capture_output=True,text=True); say('  good',g.stdout.strip() or g.stderr[-200:])
for c in cs: c.close()
time.sleep(2); s=p.stats(); say('  after close: parked',s['totals']['net']['parked_pulls'],'rss %.0f'%p.rss(),'stop',p.stop())
