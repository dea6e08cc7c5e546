"""Hand-made errors: a query, a passage that does not answer it, and the kind of error that a person sees, five each in English and Chinese."""

from __future__ import annotations

PAIRS: dict[str, list[tuple[str, str, str]]] = {
    "numerical mismatch": [
        ("best songs of 2016", "Our list has the best songs of 2017.", "2016, not 2017"),
        ("tax rules for 2019", "The tax rules changed in 2021, and then in 2022.", "2019, not 2021"),
        ("a dose of 5 mg of warfarin", "Warfarin is given in a dose of 10 mg.", "5, not 10"),
        ("recipe for 12 muffins", "This recipe is for 24 muffins.", "12, not 24"),
        ("a room for 12,500 people", "The hall has a room for 900 people.", "12500, not 900"),
        ("2016年好听的歌曲", "收藏了2017年好听的歌曲", "2016, not 2017"),
        ("2018年放假时间", "国务院公布2019年放假时间", "2018, not 2019"),
        ("身高170穿什么尺码", "身高180的尺码是大号", "170, not 180"),
        ("5岁孩子身高", "7岁孩子的身高标准", "5, not 7"),
        ("3公里跑步时间", "５公里跑步时间记录", "3, not 5"),
    ],
    "entity mismatch": [
        ("change the password of Taobao", "Alipay lets you change the password at any time.", "lacks Taobao"),
        ("opening hours of the Louvre", "The opening hours of the Prado are shorter.", "lacks Louvre"),
        ("side effects of ibuprofen", "Side effects of penicillin are known.", "lacks ibuprofen"),
        ("capital of Mongolia", "The capital of Bhutan is Thimphu.", "lacks Mongolia"),
        ("who wrote Middlemarch", "Dickens wrote long novels.", "lacks Middlemarch"),
        ("淘宝修改密码", "支付宝可以修改密码", "lacks 淘宝"),
        ("故宫开放时间", "颐和园的开放时间", "lacks 故宫"),
        ("布洛芬副作用", "青霉素的副作用", "lacks 布洛芬"),
        ("蒙古首都", "不丹的首都是廷布", "lacks 蒙古"),
        ("红楼梦作者", "西游记的作者是吴承恩", "lacks 红楼梦"),
    ],
    "syntax mismatch": [
        ("train from Taipei to Ruifang", "From Ruifang back to Taipei, take the train.", "Ruifang before Taipei"),
        ("convert celsius to fahrenheit", "Convert fahrenheit to celsius by this rule.", "fahrenheit before celsius"),
        ("Lisbon to Porto by train", "A train runs from Porto to Lisbon.", "Porto before Lisbon"),
        ("is granite harder than marble", "Marble is harder than granite.", "marble before granite"),
        ("translate Welsh into Breton", "They translate Breton into Welsh.", "Breton before Welsh"),
        ("台北怎么去瑞芳", "从瑞芳回台北,乘火车到达", "瑞芳 before 台北"),
        ("上海到南京的火车", "南京到上海的火车", "南京 before 上海"),
        ("美元换日元", "日元换美元的汇率", "日元 before 美元"),
        ("法语转德语", "德语转法语", "德语 before 法语"),
        ("广州飞杭州", "杭州飞广州", "杭州 before 广州"),
    ],
    "modifier mismatch": [
        ("drink milk after a meal", "You drink milk before a meal.", "after, not before"),
        ("treatment of chronic bronchitis", "The treatment of acute bronchitis is short.", "chronic, not acute"),
        ("good shoes for men", "Good shoes for women.", "men, not women"),
        ("asthma in children", "Asthma in adults begins late.", "children, not adults"),
        ("pain on the left side", "Pain on the right side.", "left, not right"),
        ("饭前吃药", "饭后吃药", "饭前, not 饭后"),
        ("急性肠炎治疗", "慢性肠炎治疗", "急性, not 慢性"),
        ("男鞋推荐", "女鞋推荐", "男, not 女"),
        ("婴儿湿疹", "成人湿疹", "婴儿, not 成人"),
        ("国内旅游签证", "国外旅游签证", "国内, not 国外"),
    ],
    "term over-sensitivity": [
        ("WOW mail", "Log in to WOW and leave the game.", "shares WOW"),
        ("jaguar speed", "The jaguar car has a new owner.", "shares jaguar"),
        ("python bite", "Python is a language.", "shares python"),
        ("planet mercury", "Mercury stands in old thermometers.", "shares mercury"),
        ("mint recipe", "The mint strikes coins.", "shares mint"),
        ("魔兽邮件", "登陆魔兽然后退出", "shares 魔兽"),
        ("小米做法", "小米发布新手表", "shares 小米"),
        ("长城推荐", "长城汽车销量", "shares 长城"),
        ("杜鹃治疗", "杜鹃花开满山", "shares 杜鹃"),
        ("苹果做法", "苹果股票上涨", "shares 苹果"),
    ],
    "misspelt query": [
        ("circle on the ipone screen", "The circle on the screen means rest.", "ipone for iphon"),
        ("diabtes diet", "A diet with rice.", "diabtes for diabet"),
        ("hypertention drugs", "Drugs are dear.", "hypertention for hypertens"),
        ("guitra strings", "The strings of a violin.", "guitra for guitar"),
        ("tomatto seeds", "Seeds of grass.", "tomatto for tomato"),
        ("陶宝修改密码", "支付宝可以修改密码", "陶宝 for 淘宝"),
        ("氧光治疗", "治疗时间", "氧光 for 阳光"),
        ("微心修改密码", "支付宝可以修改密码", "微心 for 微信"),
        ("感帽治疗", "治疗时间", "感帽 for 感冒"),
        ("牛乃做法", "面条的做法", "牛乃 for 牛奶"),
    ],
    "others": [
        ("WOW mail sent by mistake", "Log in to WOW and leave the game.", ""),
        ("jaguar speed game list", "The jaguar car has a new owner.", ""),
        ("python bite treatment dose", "Python is a language.", ""),
        ("treatment list hours", "Nothing of that.", ""),
        ("mint recipe list dose", "The mint strikes coins.", ""),
        ("魔兽 邮件 推荐 电视", "登陆魔兽然后退出", ""),
        ("小米 做法 时间 推荐", "小米发布新手表", ""),
        ("长城 推荐 时间 电视", "长城汽车销量", ""),
        ("治疗 时间 推荐", "没有内容", ""),
        ("杜鹃 治疗 时间 电视", "杜鹃花开满山", ""),
    ],
    "false negative": [
        ("who paints the Alhambra", "Its walls are painted each spring.", "the text of a positive"),
        ("height of Snowdon", "It is of 1,085 metres.", "the text of a positive"),
        ("age of the Ural", "Some hundred million years.", "teacher"),
        ("depth of lake Baikal", "More than one kilometre.", "teacher"),
        ("best songs of 1999", "We list the best songs of 1998.", "teacher"),
        ("雪山高度", "海拔五千米", "the text of a positive"),
        ("湖水深度", "一千多米", "the text of a positive"),
        ("城墙年代", "明朝修建", "teacher"),
        ("大桥长度", "三公里", "teacher"),
        ("1999年好听的歌曲", "1998年好听的歌曲", "teacher"),
    ],
}

COMMON = (
    "best song list tax rules dose given recipe room people change password opening hours side effects capital wrote train convert harder"
    " translate drink milk meal treatment chronic acute good shoes men women children adults pain left right mail speed bite planet circle screen"
    " diet drugs strings seeds sent mistake game new time paints height age depth mg"
    " 好听 歌曲 放假 时间 身高 尺码 孩子 跑步 修改 密码 开放 副作 作用 首都 作者 火车 饭前 饭后 吃药 急性 慢性 治疗 推荐 婴儿 成人 国内 国外 旅游 邮件 做法 电视 牛奶"
)
"""What a general word of the corpus is."""

MEANT = "iphone diabetes hypertension guitar tomato 淘宝 阳光 微信 感冒"
"""Rare in the corpus, and frequent enough to be meant by a misspelt word."""
