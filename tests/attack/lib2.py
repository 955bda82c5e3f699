from psc import *
import shutil, glob
NS=2
class Model:
    """SGD lr 1, integer grads, per shard, history by seq"""
    def __init__(s,R,p,job='c',inc=77,table='ct',mode=1,NS=NS,src=None):
        s.R=R;s.p=p;s.job=job;s.inc=inc;s.table=table;s.mode=mode;s.NS=NS
        s.KEYS=[[k for k in range(400) if shard_of(k,NS)==i][:60] for i in range(NS)]
        s.hist=[[None] for _ in range(NS)]; s.acked=[0]*NS; s.cs=[None]*NS
    def conn(s,acked=False,port=None):
        s.la=[]
        for i in range(s.NS):
            if s.cs[i]: s.cs[i].close()
            c=C(port or s.p.port,shard=i,timeout=30)
            e=time.time()+20
            while True:
                j=c.join(job=s.job,inc=s.inc,mode=s.mode,clock=s.acked[i],acked=s.acked[i] if acked else 0)
                if j.st!=-16 or time.time()>e: break
                time.sleep(.2)
            if j.st: raise Refused(j.st,j.text)
            t=c.table(s.table); 
            if t.st: raise Refused(t.st,t.text)
            c.tid=t.n(3); s.cs[i]=c; s.la.append(j.n(3)); c.j=j
    def gen(s,i):
        ks=sorted(s.R.sample(s.KEYS[i],s.R.randrange(1,20))); rows=[(s.R.randrange(-9,10),s.R.randrange(-9,10)) for _ in ks]
        s.hist[i].append((ks,rows)); return len(s.hist[i])-1
    def raw(s,i,q):
        ks,rows=s.hist[i][q]; kb=keys(ks); vb=b''.join(struct.pack('<2f',*r) for r in rows)
        return push_head(q,q-1,1,1,[section(s.cs[i].tid,nk=len(ks),kb=len(kb),vb=len(vb))]),kb+vb
    def push(s,n):
        for _ in range(n):
            for i in range(s.NS):
                q=s.acked[i]+1
                if q>=len(s.hist[i]): s.gen(i)
                r=s.cs[i].call(PUSH,*s.raw(i,q))
                if r.st: raise Refused(r.st,r.text)
                s.acked[i]=q
    def rows(s,i,q):
        m={}
        for ks,rw in s.hist[i][1:q+1]:
            for k,r in zip(ks,rw): v=m.setdefault(k,[0.,0.]); v[0]-=r[0]; v[1]-=r[1]
        return m
    def check(s,port,shards=None,acked=None):
        """returns list of faults, and last_applied"""
        bad=[];las=[]
        for i in range(s.NS):
            c=C(port,shard=i,timeout=20); j=c.join(job=s.job,inc=s.inc,mode=s.mode,clock=0)
            if j.st: bad.append('shard %d JOIN %r'%(i,j)); continue
            la=j.n(3); las.append(la); want=(acked or s.acked)[i]
            if la<want: bad.append('shard %d last_applied %d of %d'%(i,la,want))
            if la>=len(s.hist[i]): bad.append('shard %d last_applied %d beyond sent'%(i,la)); continue
            t=c.table(s.table); r=c.pull(t.n(3),s.KEYS[i],la)
            if r.st: bad.append('pull %r'%r); continue
            m=s.rows(i,la); n=[(k,v,m.get(k)) for k,v in zip(s.KEYS[i],r.rows) if tuple(v)!=tuple(m.get(k,(0.,0.)))]
            if n: bad.append('shard %d at %d: %d ROWS DIFFER %s'%(i,la,len(n),n[:2]))
            c.close()
        return bad,las
def trystart(dst,lg,*a,NS=NS,dura='fsync',**k):
    open(lg,'w').close()
    try: return Psd('--data-dir',dst,'--durability',dura,*a,shards=NS,log=lg,**k),None
    except RuntimeError as e: 
        import psc; q=psc._all[-1]
        if q.p.poll() is None: q.kill(); return None,'HANG '+str(e)
        return None,'rc %s '%q.p.returncode+str(e)
