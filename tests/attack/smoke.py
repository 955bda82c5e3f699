from psc import *
p=Psd()
c=C(p.port); print(c.hr, c.join(job='demo',inc=7)); t=c.table('emb'); print(t)
print(c.push(t.n(3),[5,6,300],[(1,2),(3,4),(.5,-1)],1)); r=c.pull(t.n(3),[5,7,300],1); print(r,r.rows)
print(c.call(BEAT,fv(1,1)),c.call(LEAVE,fv(1,1)))
o=C(p.port,role='operator',shard=0xffffffff); print(o.admin('status').body[:3000])
print(o.admin('stats').body[:3000])
print(p.rss(),p.stop())
